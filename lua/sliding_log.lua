-- sliding_log: remembers every charge for the length of the window, and is exact:
-- a unit is back exactly one window after it was charged. Refused requests are
-- not remembered. Memory grows with the number of charges.
--
-- Arguments  2: number n of the log's key in the request's KEYS, length of the window in µs
-- Keys       KEYS[n]: sorted set, an entry for each charge; the score is its
--            moment in µs, the member "number:cost", so that entries of the same
--            moment differ
-- Counter
--   until    when the latest charge leaves the window
--   entries  in the log
--   used     the sum of their costs
--   number   of the latest entry
-- A log that does not have as many entries as the counter says, or whose latest
-- charge is more than a window ahead, is unreadable and begins anew. A member
-- without a cost counts one.

algorithms.sliding_log = function(held, limit, cost, now, arg, _, base)
  local log, window = base + ARGV[arg], ARGV[arg + 1] + 0
  local start = string.format('%.0f', now - window) -- what was charged by then has left

  local function units_of(member)
    local units = string.match(member, ':(%d+)$')
    return units and #units <= 10 and units + 0 or 1
  end

  local entries, used, number, latest, unreadable = 0, 0, 0, 0, false
  local gone = 0
  local ending, count, total, latest_id
  if held then
    ending, count, total, latest_id = string.match(held, '^ (%d+) (%d+) (%d+) (%d+)$')
    unreadable = not count or #ending > 16 or #total > 15 or #latest_id > 15 or ending + 0 > now + 2 * window
      or ending + 0 > now and redis.pcall('ZCARD', KEYS[log]) ~= tonumber(count)
    if not unreadable and ending + 0 > now then -- else it has ended
      entries, used, number = count + 0, total + 0, latest_id + 0
      latest = ending - window
      for _, member in ipairs(redis.call('ZRANGEBYSCORE', KEYS[log], '-inf', start)) do
        gone = gone + 1
        used = math.max(0, used - units_of(member))
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
      wanted = wanted - units_of(oldest[i])
      if wanted <= 0 then
        return oldest[i + 1] + window - now
      end
    end
    return window -- the log has less than the counter says
  end

  -- What leaves the log when `owed` units are given back, the latest first: the
  -- members to remove, the one to put back with less and its moment, and the
  -- moment of the latest that stays.
  local function give_back(owed)
    local removed, newest = {}, 0
    local last = redis.call('ZREVRANGE', KEYS[log], 0, math.min(owed, entries - gone), 'WITHSCORES')
    for i = 1, #last, 2 do
      if owed == 0 or #removed + gone == entries then
        if #removed + gone < entries then
          newest = last[i + 1] + 0
        end
        break
      end
      local units = units_of(last[i])
      removed[#removed + 1] = last[i]
      if units > owed then
        local id = string.match(last[i], '^(.*):')
        return removed, last[i + 1] + 0, string.format('%s:%.0f', id, units - owed), last[i + 1]
      end
      owed = owed - units
    end
    return removed, newest
  end

  local retry, over = 0, used + cost - limit
  if cost > limit then
    retry = -1
  elseif cost > 0 and over > 0 then
    retry = freed(over)
  end
  local next = used > 0 and freed(math.max(1, used - limit + 1)) or 0

  return retry, unreadable, function(charge)
    if charge == 0 then
      return math.max(0, limit - used), next, used > 0 and latest + window - now or 0
    end
    local sum, newest, added = used + charge, math.max(latest, now), 1
    local removed, less, moment = {}, nil, nil
    if charge < 0 then
      added = 0
      removed, newest, less, moment = give_back(-charge)
    end
    local left = entries - gone + added - #removed + (less and 1 or 0)
    if left == 0 or sum < 0 then
      sum = 0
    end
    if charge < 0 then
      next = sum > 0 and freed(math.max(1, sum - limit + 1)) or 0
    else
      next = used > 0 and math.min(next, window) or window
    end
    local ends = left > 0 and newest + window or now
    local text = string.format(' %.0f %.0f %.0f %.0f', ends, left, sum, number + added)
    return math.max(0, limit - sum), next, sum > 0 and newest + window - now or 0, text,
      tonumber(ending) ~= ends and ends or nil, function(expire)
      if entries == 0 then
        redis.call('DEL', KEYS[log])
      elseif gone > 0 then
        redis.call('ZREMRANGEBYSCORE', KEYS[log], '-inf', start)
      end
      for _, member in ipairs(removed) do
        redis.call('ZREM', KEYS[log], member)
      end
      if less then
        redis.call('ZADD', KEYS[log], moment, less)
      end
      if added == 1 then
        redis.call('ZADD', KEYS[log], string.format('%.0f', now), string.format('%.0f:%.0f', number + 1, charge))
      end
      if left > 0 then
        expire(log, ends)
      end
    end
  end
end
