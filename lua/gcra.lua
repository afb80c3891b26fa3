-- gcra: the generic cell rate algorithm (ITU-T I.371, as in throttled and
-- redis-cell). A unit has an emission interval; the counter is the theoretical
-- arrival time, the moment at which all that was charged will have been emitted.
-- A request passes if that moment is then at most `limit` intervals ahead.
--
-- The interval is a fraction in lowest terms, micros / units, so that nothing is
-- rounded away. What is owed is counted in parts: micros to a unit, of which
-- `units` are paid off in a microsecond.
--
-- Arguments  2: units, micros
-- Limit      the burst
-- Counter
--   until   the theoretical arrival time, rounded up to a microsecond
--   ahead   what it was rounded up by, in parts
-- A moment of arrival that is more than two full bursts ahead is unreadable.

algorithms.gcra = function(counter, limit, cost, now, args)
  local units, micros = args[1], args[2]
  local function pay_off(parts)
    local rest = math.fmod(parts, units)
    return (parts - rest) / units + (rest > 0 and 1 or 0)
  end

  local debt, unreadable = 0, false
  if counter then
    local ahead = counter.expires - now
    if #counter.values ~= 1 or counter.values[1] < 0 or ahead > 2 * pay_off(limit * micros) then
      unreadable = true
    elseif ahead > 0 then
      debt = math.max(0, ahead * units - math.min(counter.values[1], units - 1))
    end
  end

  local function standing(parts)
    local room = limit * micros - parts
    local remaining = room > 0 and (room - math.fmod(room, micros)) / micros or 0
    local surplus = math.max(0, parts - (limit - remaining - 1) * micros)
    return { remaining = remaining, next = parts > 0 and pay_off(surplus) or 0, reset = pay_off(parts) }
  end
  if cost > limit then
    return { retry = -1, before = standing(debt), unreadable = unreadable }
  end
  local owed = math.max(0, debt + cost * micros)
  local over, retry = owed - limit * micros, 0
  if cost > 0 and over > 0 then
    retry = pay_off(over)
  end
  local ahead = pay_off(owed)
  return {
    retry = retry,
    before = standing(debt),
    after = standing(owed),
    charged = { expires = now + ahead, values = { ahead * units - owed } },
    unreadable = unreadable,
  }
end
