-- spend: decides one request against all limits of its policy. All pass and all
-- are charged, or nothing is written. Each algorithm is a function in the table
-- `algorithms`; the caller puts `local algorithms = {}` and the files with those
-- that the policy needs before this one. The function is given
--   values, expires   of the held counter: the text behind `until` and `until`
--                     itself; nil if there is none
--   limit, cost, now
--   arg, count        where its arguments begin in ARGV, and how many there are
-- and returns
--   retry             as in the reply, or nil: the boundaries do not contain now
--   unreadable        the held values could not be read; it began anew
--   remaining, next, reset            as in the reply, if nothing is charged
--   remaining, next, reset            if the cost is charged
--   expires, values   of the counter to keep then
--   write             function that writes what is kept beside the hash, or nil
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
local cost = tonumber(ARGV[2])
local match = string.match

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

-- What is held: every counter of the hash, also those of limits that are not in
-- this policy, since the key must outlive them all.
local shapes, ends, values, garbled = {}, {}, {}, {} -- by the limit's name
local latest = 0 -- what the key's expiry is set to already
local restarted = 0
local flat = redis.pcall('HGETALL', KEYS[1])
local foreign = flat.err ~= nil -- the key is not a hash
if foreign then
  flat, restarted = {}, 1
end
for i = 1, #flat, 2 do
  local name = flat[i]
  local shape, expires, rest = match(flat[i + 1], '^(%S+) (%d+)(.*)$')
  if shape and #expires <= 16 then
    expires = tonumber(expires)
    shapes[name], ends[name], values[name] = shape, expires, rest
    if expires > latest then
      latest = expires
    end
  else
    garbled[name] = true
  end
end

-- ask asks every limit, before anything is written: whether all pass, the
-- standings before and after, and what to write. nil if the caller's clock is too
-- far from ours.
local function ask(units)
  local passed, unreadable, before, after, fields, writes = true, 0, {}, {}, {}, nil
  local arg, n = 5, 0
  for i = 1, tonumber(ARGV[4]) do
    local name, shape, count = ARGV[arg], ARGV[arg + 1], tonumber(ARGV[arg + 3])
    local held, expires
    if shapes[name] == shape then
      held, expires = values[name], ends[name]
    end
    local retry, bad, left, next, reset, left2, next2, reset2, expires2, held2, write =
      algorithms[match(shape, '^[^.]+')](held, expires, tonumber(ARGV[arg + 2]), units, now, arg + 4, count)
    if not retry then
      return nil
    end
    if bad or garbled[name] then
      unreadable = unreadable + 1
    end
    passed = passed and retry == 0
    before[n + 1], before[n + 2], before[n + 3], before[n + 4] = retry, left, next, reset
    after[n + 1], after[n + 2], after[n + 3], after[n + 4] = retry, left2, next2, reset2
    n = n + 4
    fields[i] = { name, shape, expires2, held2 }
    if write then
      writes = writes or {}
      writes[#writes + 1] = write
    end
    arg = arg + 4 + count
  end
  return passed, unreadable, passed and after or before, fields, writes
end

local passed, unreadable, standings, fields, writes
if ARGV[3] == '1' then
  standings = select(3, ask(0))
  for i = 2, standings and #standings or 0, 4 do
    cost = math.min(cost, standings[i])
  end
  cost = math.max(1, cost) -- which is refused if nothing is left
end
passed, unreadable, standings, fields, writes = ask(cost)
if passed == nil then
  return { -1, now }
end

if passed and cost ~= 0 then
  local texts, grown = {}, false
  for i, field in ipairs(fields) do
    local name, expires = field[1], field[3]
    texts[2 * i - 1] = name
    texts[2 * i] = field[2] .. ' ' .. integer(expires) .. field[4]
    grown = grown or ends[name] ~= expires
    ends[name] = expires
  end
  if foreign then
    redis.call('DEL', KEYS[1])
  end
  redis.call('HSET', KEYS[1], unpack(texts))

  if grown then -- else no counter ends at another time than before
    local ended, expires = {}, 0
    for name, moment in pairs(ends) do
      if moment <= now then
        ended[#ended + 1] = name
      end
      expires = math.max(expires, moment)
    end
    if #ended > 0 then
      redis.call('HDEL', KEYS[1], unpack(ended))
    end
    if expires ~= latest then
      expire(1, expires)
    end
  end
  for _, write in ipairs(writes or {}) do
    write(expire)
  end
end

local reply = { passed and 1 or 0, now, restarted + unreadable, passed and cost or 0 }
for i = 1, #standings do
  reply[i + 4] = standings[i]
end
return reply
