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

algorithms.sliding_window = function(values, expires, limit, cost, now, arg)
  local buckets, length = tonumber(ARGV[arg]), tonumber(ARGV[arg + 1])
  local index = (now - math.fmod(now, length)) / length
  local units, unreadable = {}, false -- [1] is the latest
  if values then
    local latest, found = expires / length - buckets, 0
    unreadable = math.fmod(expires, length) ~= 0 or latest > index + buckets
    local age = math.max(0, index - latest)
    for word in string.gmatch(values, '%S+') do
      local n = tonumber(word)
      found = found + 1
      unreadable = unreadable or not n or n < 0 or n > 1000000000000 or string.find(word, '%D') ~= nil
      if found + age <= buckets then
        units[found + age] = n
      end
    end
    unreadable = unreadable or found ~= buckets
    if unreadable then
      units = {}
    else
      index = math.max(index, latest)
    end
  end
  for i = 1, buckets do
    units[i] = units[i] or 0
  end
  local function leaves(i) -- when the i-th latest bucket leaves the window
    return (index - i + 1 + buckets) * length
  end

  -- freed is the time until so many units have left the window, the oldest
  -- buckets first.
  local function freed(wanted)
    for i = buckets, 1, -1 do
      wanted = wanted - units[i]
      if wanted <= 0 then
        return leaves(i) - now
      end
    end
  end
  local function standing()
    local used, reset = 0, 0
    for i = buckets, 1, -1 do
      used = used + units[i]
      if units[i] > 0 then
        reset = leaves(i) - now
      end
    end
    local next = used > 0 and freed(math.max(1, used - limit + 1)) or 0
    return used, math.max(0, limit - used), next, reset
  end

  local used, remaining, next, reset = standing()
  local retry, over = 0, used + cost - limit
  if cost > limit then
    retry = -1
  elseif cost > 0 and over > 0 then
    retry = freed(over)
  end
  if retry ~= 0 or cost == 0 then
    return retry, unreadable, remaining, next, reset, remaining, next, reset
  end
  units[1] = units[1] + cost
  for i = 1, buckets do -- what is given back comes off the latest first
    if units[i] < 0 then
      units[i], units[i + 1] = 0, i < buckets and units[i + 1] + units[i] or nil
    end
  end
  local _, left, sooner, full = standing()
  for i = 1, buckets do
    units[i] = string.format('%.0f', units[i])
  end
  return 0, unreadable, remaining, next, reset, left, sooner, full, leaves(1), ' ' .. table.concat(units, ' ')
end
