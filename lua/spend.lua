-- spend: decides one request against all limits of its policy. All pass and all
-- are charged, or nothing is written. Each algorithm is a function in the table
-- `algorithms`; the caller puts `local algorithms = {}` and the files with those
-- that the policy needs before this one.
--
-- KEYS
--   1  hash with the counters of one identity in one scope: a field per limit,
--      named by it, with the text "shape until values…" (see README.md)
--   2… a sorted set for each sliding_log, in the order of the limits
-- ARGV
--   1  now: µs since the epoch, or "" for this server's clock
--   2  cost: units to charge; 0 peeks, a negative cost gives back
--   3  up to: 1 to charge as much of the cost as every limit has room for, else 0
--   4  number of limits; then for each limit
--        name
--        shape: algorithm.fingerprint; a counter of another shape restarts the limit
--        limit: units that it holds when nothing is used
--        number of the algorithm's arguments, and these (see the algorithm's file)
-- Reply: integers
--   1  1 all passed, 0 refused, -1 the boundaries do not contain now: ask again
--      with boundaries around the moment in the next integer, the last of the reply
--   2  now, µs since the epoch
--   3  number of counters that could not be read and began anew
--   4  units that were charged
--      then for each limit
--        retry: 0 it lets the request pass, else µs until it would; -1 never
--        remaining: units
--        next: µs until more than that remains
--        reset: µs until the limit is full again if nothing more is charged

local now = tonumber(ARGV[1])
local server_clock = now == nil
if server_clock then
  local time = redis.call('TIME')
  now = time[1] * 1000000 + time[2]
end
local cost, up_to = tonumber(ARGV[2]), ARGV[3] == '1'

-- integer writes a number in full: Lua's own conversion writes 1e+15.
local function integer(n)
  return string.format('%.0f', n)
end

-- expire makes a key go when its last counter ends. A clock that is given need not
-- run with this server's: then the key stays an hour longer, out of its way.
local function expire(n, ends)
  if server_clock then
    redis.call('PEXPIREAT', KEYS[n], integer(math.ceil(ends / 1000)))
  else
    redis.call('PEXPIRE', KEYS[n], integer(math.ceil((ends - now) / 1000) + 3600000))
  end
end

-- parse reads a counter's text; nil if that is not one.
local function parse(text)
  local shape, expires, rest = string.match(text, '^(%S+) (%d+)(.*)$')
  if not shape or #expires > 16 then
    return nil
  end
  local values = {}
  for word in string.gmatch(rest, '%S+') do
    local value = string.match(word, '^-?%d+$') and #word <= 16 and tonumber(word)
    if not value then
      return nil
    end
    values[#values + 1] = value
  end
  return { shape = shape, expires = tonumber(expires), values = values }
end

-- What is held: every counter of the hash, also those of limits that are not in
-- this policy, since the key must outlive them all.
local held, garbled, restarted = {}, {}, 0
local flat = redis.pcall('HGETALL', KEYS[1])
local foreign = flat.err ~= nil -- the key is not a hash
if foreign then
  flat, restarted = {}, 1
end
for i = 1, #flat, 2 do
  held[flat[i]] = parse(flat[i + 1])
  garbled[flat[i]] = held[flat[i]] == nil
end

-- ask asks every limit, before anything is written; nil if the caller's clock is
-- too far from ours.
local function ask(units)
  local verdicts, passed, unreadable, arg = {}, true, 0, 5
  for i = 1, tonumber(ARGV[4]) do
    local name, shape, limit, count = ARGV[arg], ARGV[arg + 1], tonumber(ARGV[arg + 2]), tonumber(ARGV[arg + 3])
    local args = {}
    for j = 1, count do
      args[j] = tonumber(ARGV[arg + 3 + j])
    end
    arg = arg + 4 + count

    local counter = held[name]
    if counter and counter.shape ~= shape then
      counter = nil
    end
    local verdict = algorithms[string.match(shape, '^[^.]+')](counter, limit, units, now, args)
    if not verdict then
      return nil
    end
    if verdict.unreadable or garbled[name] then
      unreadable = unreadable + 1
    end
    passed = passed and verdict.retry == 0
    verdict.name, verdict.shape = name, shape
    verdicts[i] = verdict
  end
  return verdicts, passed, unreadable
end

local verdicts, passed, unreadable = ask(up_to and 0 or cost)
if verdicts and up_to then
  for _, verdict in ipairs(verdicts) do
    cost = math.min(cost, verdict.before.remaining)
  end
  cost = math.max(1, cost) -- which is refused if nothing is left
  verdicts, passed, unreadable = ask(cost)
end
if not verdicts then
  return { -1, now }
end
restarted = restarted + unreadable

if passed and cost ~= 0 then
  local latest = 0 -- what the key's expiry is set to already
  for _, counter in pairs(held) do
    latest = math.max(latest, counter.expires)
  end

  local fields = {}
  for _, verdict in ipairs(verdicts) do
    local charged = verdict.charged
    local text = { verdict.shape, integer(charged.expires) }
    for _, value in ipairs(charged.values) do
      text[#text + 1] = integer(value)
    end
    fields[#fields + 1] = verdict.name
    fields[#fields + 1] = table.concat(text, ' ')
    held[verdict.name] = charged
  end
  if foreign then
    redis.call('DEL', KEYS[1])
  end
  redis.call('HSET', KEYS[1], unpack(fields))

  local ended, expires = {}, 0
  for name, counter in pairs(held) do
    if counter.expires <= now then
      ended[#ended + 1] = name
    end
    expires = math.max(expires, counter.expires)
  end
  if #ended > 0 then
    redis.call('HDEL', KEYS[1], unpack(ended))
  end
  if expires ~= latest then
    expire(1, expires)
  end
  for _, verdict in ipairs(verdicts) do
    if verdict.write then
      verdict.write(expire)
    end
  end
end

local reply = { passed and 1 or 0, now, restarted, passed and cost or 0 }
for _, verdict in ipairs(verdicts) do
  local standing = passed and verdict.after or verdict.before
  reply[#reply + 1] = verdict.retry
  reply[#reply + 1] = standing.remaining
  reply[#reply + 1] = standing.next
  reply[#reply + 1] = standing.reset
end
return reply
