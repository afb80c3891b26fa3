-- spend: decides requests, one after the other, against all limits of their policy.
-- All limits pass and all are charged, or nothing is written for that request.
--
-- KEYS  of each request, one request after the other
--   1…   hashes, each with the counters of one identity in one scope: a field per
--        limit, named by it, with the text "shape until values…" (see README.md)
--   …n   a sorted set for each sliding_log, in the order of the limits
-- ARGV
--   1  now: µs since the epoch, or "" for this server's clock
--   2  costs of the requests, with spaces between: units to charge; 0 peeks, a
--      negative cost gives back
--   3  mode: "" charges the cost or nothing; "up to" as much of it as every limit
--      has room for; when giving back, for each limit the `until` of its counter
--      after the charge, or "-", with spaces between: where the counter has
--      another by now, or has ended, nothing is given back
--   4  number of KEYS of a request
--   5  number of limits; then for each limit
--        number of its hash in a request's KEYS
--        name
--        shape: algorithm.fingerprint; a counter of another shape restarts the limit
--        limit: units that it holds when nothing is used
--        number of the algorithm's arguments, and these (see the algorithm's file)
-- Reply: integers, for each request
--   1  1 all passed, 0 refused, -1 the boundaries do not contain now: ask again
--      with boundaries around the moment in the next integer; these two are then
--      the whole reply, and nothing was charged to anybody
--   2  units that were charged
--   3  number of counters that could not be read and began anew
--   4  now, µs since the epoch
--      then for each limit
--        retry: of one that refuses, µs until it would let the request pass, -1 if
--               never; else 0 or, if all passed, µs for which the request must wait
--        remaining: units
--        next: µs until more than that remains
--        reset: µs until the limit is full again if nothing more is charged
--
-- The caller puts `local algorithms = {}` and the files of the algorithms that
-- the policy uses before this one. Each is a function in that table. It is given
--   held              the counter's text behind its shape, or nil
--   limit, cost, now  as above
--   arg, count        where its arguments begin in ARGV, and how many there are
--   base              how many KEYS are those of requests before this one
-- and returns
--   retry             0 if it lets the cost pass, else as above; nil if its
--                     boundaries do not contain now
--   unreadable        true if `held` could not be read, and counting begins anew
--   settle            function that is told what is charged, 0 if another limit
--                     refuses, and returns remaining, next, reset and, if that was
--                     not 0: the counter's text behind its shape; when the counter
--                     ends, nil if that is unchanged; a function that writes what
--                     is kept beside the hash, or nil
--   wait              µs for which a request that passes must wait, or nil
-- "ARGV[n] + 0" is a number; tonumber(ARGV[n]) takes twice as long.

local now = tonumber(ARGV[1])
local server_clock = not now
if server_clock then
  local time = redis.call('TIME')
  now = time[1] * 1000000 + time[2]
end
local mode, width, limits = ARGV[3], ARGV[4] + 0, ARGV[5] + 0
local match, sub, format = string.match, string.sub, string.format

-- expire makes a key go when its last counter ends. A clock that is given need not
-- run with this server's: then the key stays an hour longer, out of its way.
local function expire(n, ends)
  if server_clock then
    redis.call('PEXPIREAT', KEYS[n], format('%.0f', math.ceil(ends / 1000)))
  else
    redis.call('PEXPIRE', KEYS[n], format('%.0f', math.ceil((ends - now) / 1000) + 3600000))
  end
end

-- Of the present request: what the limits say, retry and settle of one after the
-- other; the waits of some; how many counters were unreadable; the keys that are no
-- hashes.
local base = 0
local asked, waits, unreadable, foreign = {}, nil, 0, nil

-- ask asks every limit, before anything is written, whether it lets the units
-- pass. nil if the caller's clock is too far from ours.
local function ask(units)
  local passed = true
  local arg = 6
  waits, unreadable, foreign = nil, 0, nil
  for i = 1, limits do
    local n, shape, count = base + ARGV[arg], ARGV[arg + 2], ARGV[arg + 4] + 0
    local text = redis.pcall('HGET', KEYS[n], ARGV[arg + 1])
    local held
    if text then
      if text.err then -- the key is no hash; a text has no such field
        foreign = foreign or {}
        foreign[n] = true
        unreadable = unreadable + 1
      elseif sub(text, 1, #shape) == shape then
        held = sub(text, #shape + 1)
      elseif not match(text, '^%S+ %d') then
        unreadable = unreadable + 1
      end
    end
    local retry, bad, settle, wait =
      algorithms[sub(shape, 1, -8)](held, ARGV[arg + 3] + 0, units, now, arg + 5, count, base)
    if not retry then
      return nil
    end
    if bad then
      unreadable = unreadable + 1
    end
    if retry ~= 0 then
      passed = false
    end
    asked[i + i - 1], asked[i + i] = retry, settle
    if wait then
      waits = waits or {}
      waits[i] = wait
    end
    arg = arg + 5 + count
  end
  return passed
end

-- given says what each limit gives back, where something has a condition: nothing
-- where the counter has changed since.
local function given(cost)
  local units, arg = {}, 6
  for expected in string.gmatch(mode, '%S+') do
    local text = redis.pcall('HGET', KEYS[base + ARGV[arg]], ARGV[arg + 1])
    local changed = expected ~= '-'
      and (not text or text.err or match(text, '^%S+ (%d+)') ~= expected or expected + 0 <= now)
    units[#units + 1] = changed and 0 or cost
    arg = arg + 5 + ARGV[arg + 4]
  end
  return units
end

-- renew lets a hash go with the last of its counters, also those of limits that
-- are not in this policy; those that have ended go now. `expires` is the latest end
-- of those that moved.
local function renew(n, expires)
  if expires <= now or redis.call('HLEN', KEYS[n]) > 1 then
    expires = 0
    local flat = redis.call('HGETALL', KEYS[n])
    for i = 1, #flat, 2 do
      local ends = match(flat[i + 1], '^%S+ (%d+)')
      if ends and #ends <= 16 then
        ends = ends + 0
        if ends <= now then
          redis.call('HDEL', KEYS[n], flat[i])
        elseif ends > expires then
          expires = ends
        end
      end
    end
  end
  if expires > 0 then
    expire(n, expires)
  end
end

local reply, r = {}, 0
for word in string.gmatch(ARGV[2], '%S+') do
  local cost, back = word + 0, nil
  if mode == 'up to' then
    if cost > 1 then -- of one unit there is no part
      if ask(0) == nil then
        return { -1, now }
      end
      for i = 1, limits do
        cost = math.min(cost, (asked[i + i](0)))
      end
      cost = math.max(1, cost) -- which is refused if nothing is left
    end
  elseif mode ~= '' then
    back = given(cost)
  end
  local passed = ask(cost)
  if passed == nil then
    return { -1, now }
  end

  local charge = passed and cost or 0
  if foreign and charge ~= 0 then
    for n in pairs(foreign) do
      redis.call('DEL', KEYS[n])
    end
  end
  reply[r + 1], reply[r + 2], reply[r + 3], reply[r + 4] = passed and 1 or 0, charge, unreadable, now
  r = r + 4
  local arg, moved = 6, nil -- by hash: the latest end of counters that end at another time now
  for i = 1, limits do
    local units = back and back[i] or charge
    local remaining, next, reset, text, ends, write = asked[i + i](units)
    local retry = passed and waits and waits[i] or asked[i + i - 1]
    reply[r + 1], reply[r + 2], reply[r + 3], reply[r + 4] = retry, remaining, next, reset
    r = r + 4
    if units ~= 0 then
      local n = base + ARGV[arg]
      redis.call('HSET', KEYS[n], ARGV[arg + 1], ARGV[arg + 2] .. text)
      if ends then
        moved = moved or {}
        moved[n] = math.max(moved[n] or 0, ends)
      end
      if write then
        write(expire)
      end
    end
    arg = arg + 5 + ARGV[arg + 4]
  end
  if moved then
    for n, expires in pairs(moved) do
      renew(n, expires)
    end
  end
  base = base + width
end
return reply
