-- sliding_window: counts in buckets, of which the window spans a fixed number:
-- the present one and those before it. Constant memory; never more than `limit`
-- units in a window that ends with a bucket. Buckets begin at multiples of their
-- length since the epoch.
--
-- Arguments  2: number of buckets, length of one in µs
-- Counter
--   until    when the latest bucket leaves the window
--   used     the sum of the units
--   age      how many units follow; the buckets before these are empty
--   units…   those of each bucket, the latest first
-- A clock that stepped back charges the latest bucket on; one that is more than a
-- window behind it is unreadable.
--
-- Within a bucket the older ones are not looked at, but written back as they are:
-- the sum and the age say enough.

algorithms.sliding_window = function(held, limit, cost, now, arg)
  local buckets, length = ARGV[arg] + 0, ARGV[arg + 1] + 0
  local index = (now - math.fmod(now, length)) / length
  local used, age, first, older, unreadable = 0, 0, 0, '', false
  local expires -- as the counter has it, if it is of the present bucket
  local units -- of all buckets, the latest first, once they have been asked for

  -- read reads the units, which were written so many buckets ago.
  local function read(ago)
    units = {}
    for i = 1, buckets do
      units[i] = 0
    end
    local i, sum, newest = ago, 0, 0
    for word in string.gmatch(' ' .. first .. older, '%d+') do
      i = i + 1
      if i <= buckets then
        units[i] = math.min(word + 0, 1000000000000)
        sum = sum + units[i]
        newest = units[i] > 0 and i or newest
      end
    end
    used, age = sum, newest
  end

  if held then
    local ending, sum, count, latest, rest = string.match(held, '^ (%d+) (%d+) (%d+) (%d+)([ %d]*)$')
    unreadable = not ending or #ending > 16 or #sum > 15 or #latest > 13
    if not unreadable and ending + 0 > now then -- else it has ended
      local ago = index - (ending / length - buckets)
      if math.fmod(ending, length) ~= 0 or ago < -buckets or count + 0 < 1 or count + 0 > buckets then
        unreadable = true
      else
        used, age, first, older = sum + 0, count + 0, latest + 0, rest
        if ago > 0 then
          read(ago)
        else
          index, expires = index - ago, ending
        end
      end
    end
  end

  local function leaves(i) -- when the i-th latest bucket leaves the window
    return (index - i + 1 + buckets) * length
  end
  -- freed is the time until so many units have left the window, the oldest
  -- buckets first.
  local function freed(wanted)
    if wanted <= 1 then
      return leaves(age) - now
    end
    if not units then
      read(0)
    end
    for i = age, 1, -1 do
      wanted = wanted - units[i]
      if wanted <= 0 then
        return leaves(i) - now
      end
    end
    return leaves(1) - now
  end

  local retry, over = 0, used + cost - limit
  if cost > limit then
    retry = -1
  elseif cost > 0 and over > 0 then
    retry = freed(over)
  end
  return retry, unreadable, function(charge)
    if charge < 0 or first + charge == 0 then
      if not units then
        read(0)
      end
      local i = 1
      while charge < 0 and i <= age do -- what is given back comes off the latest first
        local back = math.min(units[i], -charge)
        units[i], used, charge = units[i] - back, used - back, charge + back
        i = i + 1
      end
      while age > 0 and units[age] == 0 do
        age = age - 1
      end
    elseif units then
      units[1], used, age = units[1] + charge, used + charge, math.max(age, 1)
    else
      first, used, age = first + charge, used + charge, math.max(age, 1)
    end
    if used == 0 then
      return limit, 0, 0, string.format(' %.0f 0 1 0', now), now
    end

    local newest = 1
    while units and units[newest] == 0 do
      newest = newest + 1
    end
    local list = units and table.concat(units, ' ', 1, age) or first .. older
    local text = used .. ' ' .. age .. ' ' .. list
    local next, reset = freed(used - limit + 1), leaves(newest) - now
    if expires then
      return math.max(0, limit - used), next, reset, ' ' .. expires .. ' ' .. text
    end
    return math.max(0, limit - used), next, reset, string.format(' %.0f ', leaves(1)) .. text, leaves(1)
  end
end
