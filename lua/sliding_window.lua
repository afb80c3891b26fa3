-- sliding_window: counts in buckets, of which the window spans a fixed number:
-- the present one and those before it. Constant memory; never more than `limit`
-- units in a window that ends with a bucket. Buckets begin at multiples of their
-- length since the epoch.
--
-- Arguments  2: number of buckets, length of one in µs
-- Counter
--   until    when the latest bucket leaves the window
--   units…   those of each bucket, the latest first
-- A clock that stepped back charges the latest bucket on; one that is more than a
-- window behind it is unreadable.

algorithms.sliding_window = function(held, limit, cost, now, arg)
  local buckets, length = ARGV[arg] + 0, ARGV[arg + 1] + 0
  local index = (now - math.fmod(now, length)) / length
  local units, used, unreadable = {}, 0, false -- units[1] is the latest bucket's
  local expires
  if held then
    local ending, list = string.match(held, '^ (%d+)([ %d]+)$')
    unreadable = not ending or #ending > 16
    if not unreadable and ending + 0 > now then -- else it has ended
      local latest = ending / length - buckets
      local found, age = 0, math.max(0, index - latest)
      unreadable = math.fmod(ending, length) ~= 0 or latest > index + buckets
      for word in string.gmatch(list, '%d+') do
        local n = word + 0
        found = found + 1
        unreadable = unreadable or n > 1000000000000
        if found + age <= buckets then
          units[found + age] = n
          used = used + n
        end
      end
      unreadable = unreadable or found ~= buckets
      if not unreadable and latest >= index then
        index, expires = latest, ending
      end
    end
    if unreadable then
      units, used = {}, 0
    end
  end
  for i = 1, buckets do
    units[i] = units[i] or 0
  end

  -- freed is the time until so many units have left the window, the oldest
  -- buckets first.
  local function freed(wanted)
    for i = buckets, 1, -1 do
      wanted = wanted - units[i]
      if wanted <= 0 then
        return (index - i + 1 + buckets) * length - now
      end
    end
  end

  local retry, over = 0, used + cost - limit
  if cost > limit then
    retry = -1
  elseif cost > 0 and over > 0 then
    retry = freed(over)
  end
  return retry, unreadable, function(charge)
    units[1] = units[1] + charge
    local i = 1
    while units[i] < 0 do -- what is given back comes off the latest first
      if i < buckets then
        units[i + 1] = units[i + 1] + units[i]
      end
      units[i] = 0
      i = math.min(i + 1, buckets)
    end
    local sum = math.max(0, used + charge)
    local remaining, next, reset = math.max(0, limit - sum), 0, 0
    if sum > 0 then
      next = freed(math.max(1, sum - limit + 1))
      local newest = 1
      while units[newest] == 0 do
        newest = newest + 1
      end
      reset = (index - newest + 1 + buckets) * length - now
    end
    if charge == 0 then
      return remaining, next, reset
    end
    local ends = (index + buckets) * length
    if sum == 0 then
      ends, expires = now, nil
    end
    local text = (expires and ' ' .. expires or string.format(' %.0f', ends)) .. ' ' .. table.concat(units, ' ')
    return remaining, next, reset, text, not expires and ends or nil
  end
end
