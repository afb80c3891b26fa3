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

algorithms.sliding_window = function(counter, limit, cost, now, args)
  local buckets, length = args[1], args[2]
  local index = (now - math.fmod(now, length)) / length
  local units = {} -- [1] is the latest
  for i = 1, buckets do
    units[i] = 0
  end

  local unreadable = false
  if counter then
    local latest = counter.expires / length - buckets
    unreadable = #counter.values ~= buckets or math.fmod(counter.expires, length) ~= 0 or latest > index + buckets
    for _, n in ipairs(counter.values) do
      unreadable = unreadable or n < 0 or n > 1000000000000
    end
    if not unreadable then
      local age = math.max(0, index - latest)
      index = math.max(index, latest)
      for i = 1, buckets - age do
        units[i + age] = counter.values[i]
      end
    end
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
    return {
      used = used,
      remaining = math.max(0, limit - used),
      next = used > 0 and freed(math.max(1, used - limit + 1)) or 0,
      reset = reset,
    }
  end

  local before = standing()
  local retry, over = 0, before.used + cost - limit
  if cost > limit then
    retry = -1
  elseif cost > 0 and over > 0 then
    retry = freed(over)
  end
  if cost == 0 then
    return { retry = 0, before = before, after = before, unreadable = unreadable }
  end
  units[1] = units[1] + cost
  for i = 1, buckets do -- what is given back comes off the latest first
    if units[i] < 0 then
      units[i], units[i + 1] = 0, i < buckets and units[i + 1] + units[i] or nil
    end
  end
  return {
    retry = retry,
    before = before,
    after = standing(),
    charged = { expires = leaves(1), values = units },
    unreadable = unreadable,
  }
end
