-- sliding_log: remembers every charge for the length of the window, and is exact:
-- a unit is back exactly one window after it was charged. Refused requests are
-- not remembered. Memory grows with the number of charges.
--
-- Arguments  2: number n of the log's key in KEYS, length of the window in µs
-- Keys       KEYS[n]: sorted set, an entry for each charge; the score is its
--            moment in µs, the member "number:cost", so that entries of the same
--            moment differ
-- Counter
--   until    when the latest charge leaves the window
--   entries  in the log
--   used     the sum of their costs
--   number   of the latest entry
-- A log that does not have as many entries as the counter says, or whose latest
-- charge is more than a window ahead, is unreadable and begins anew.

algorithms.sliding_log = function(values, expires, limit, cost, now, arg)
  local log, window = tonumber(ARGV[arg]), tonumber(ARGV[arg + 1])
  local start = string.format('%.0f', now - window) -- what was charged by then has left

  local entries, used, number, latest, unreadable = 0, 0, 0, 0, false
  local gone = 0
  if values then
    local count, sum, last = string.match(values, '^ (%d+) (%d+) (%d+)$')
    unreadable = not count or #sum > 15 or #last > 15 or expires > now + 2 * window
      or redis.pcall('ZCARD', KEYS[log]) ~= tonumber(count)
    if not unreadable then
      entries, used, number = tonumber(count), tonumber(sum), tonumber(last)
      latest = expires - window
      for _, member in ipairs(redis.call('ZRANGEBYSCORE', KEYS[log], '-inf', start)) do
        gone = gone + 1
        used = used - tonumber(string.match(member, ':(%d+)$'))
      end
      if gone == entries then
        latest = 0
      end
    end
  end

  -- freed is the time until so many units have left the window, the oldest first.
  -- Every entry gives back at least one, so that as many entries will do.
  local function freed(wanted)
    local oldest = redis.call('ZRANGE', KEYS[log], gone, gone + wanted - 1, 'WITHSCORES')
    for i = 1, #oldest, 2 do
      wanted = wanted - tonumber(string.match(oldest[i], ':(%d+)$'))
      if wanted <= 0 then
        return tonumber(oldest[i + 1]) + window - now
      end
    end
  end
  local function standing(sum, newest, next)
    return math.max(0, limit - sum), next, sum > 0 and newest + window - now or 0
  end

  local retry, over = 0, used + cost - limit
  if cost > limit then
    retry = -1
  elseif cost > 0 and over > 0 then
    retry = freed(over)
  end
  local next = used > 0 and freed(math.max(1, used - limit + 1)) or 0
  local remaining, soon, reset = standing(used, latest, next)
  if retry ~= 0 or cost == 0 then
    return retry, unreadable, remaining, soon, reset, remaining, soon, reset
  end
  -- What leaves the log with this charge, or is changed by giving back, latest
  -- first: the members to remove, and the one to put back with less.
  local removed, less, lessAt = {}, nil, nil
  local newest, added = math.max(latest, now), 1
  if cost < 0 then
    added = 0
    local owed = -cost
    local last = redis.call('ZREVRANGE', KEYS[log], 0, math.min(owed, entries - gone), 'WITHSCORES')
    newest = 0
    for i = 1, #last, 2 do
      local id, units = string.match(last[i], '^(%d+):(%d+)$')
      if owed == 0 or #removed + gone == entries then
        if newest == 0 and #removed + gone < entries then
          newest = tonumber(last[i + 1])
        end
        break
      end
      removed[#removed + 1] = last[i]
      if tonumber(units) > owed then
        less, lessAt = string.format('%s:%.0f', id, tonumber(units) - owed), last[i + 1]
        newest = tonumber(lessAt)
        break
      end
      owed = owed - tonumber(units)
    end
  end
  local left = entries - gone + added - #removed + (less and 1 or 0)
  local sum = math.max(0, used + cost)
  local nextAfter = window
  if cost < 0 then
    nextAfter = sum > 0 and freed(math.max(1, sum - limit + 1)) or 0
  elseif used > 0 then
    nextAfter = math.min(next, window)
  end
  local afterwards, sooner, full = standing(sum, newest, nextAfter)
  return 0, unreadable, remaining, soon, reset, afterwards, sooner, full,
    left > 0 and newest + window or now, string.format(' %.0f %.0f %.0f', left, sum, number + added),
    function(expire)
      if entries == 0 then
        redis.call('DEL', KEYS[log])
      elseif gone > 0 then
        redis.call('ZREMRANGEBYSCORE', KEYS[log], '-inf', start)
      end
      for _, member in ipairs(removed) do
        redis.call('ZREM', KEYS[log], member)
      end
      if less then
        redis.call('ZADD', KEYS[log], lessAt, less)
      end
      if added == 1 then
        redis.call('ZADD', KEYS[log], string.format('%.0f', now), string.format('%.0f:%.0f', number + 1, cost))
      end
      if left > 0 then
        expire(log, newest + window)
      end
    end
end
