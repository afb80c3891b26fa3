-- gcra: the generic cell rate algorithm (ITU-T I.371, as in throttled and
-- redis-cell). A unit has an emission interval; the counter is the theoretical
-- arrival time, the moment at which all that was charged will have been emitted.
-- A request passes if that moment is then at most `limit` intervals ahead. With
-- patience it also passes, and waits, if that will be so soon enough.
--
-- The interval is a fraction in lowest terms, micros / units, so that nothing is
-- rounded away. What is owed is counted in parts: micros to a unit, of which
-- `units` are paid off in a microsecond.
--
-- Arguments  3: units, micros, patience in µs
-- Limit      the burst
-- Counter
--   until   the theoretical arrival time, rounded up to a microsecond
--   ahead   what it was rounded up by, in parts
-- A moment of arrival that is more than two full bursts and the patience ahead
-- counts as no more than that: a clock that stepped back locks nobody out.

algorithms.gcra = function(held, limit, cost, now, arg)
  local units, micros, patience = ARGV[arg] + 0, ARGV[arg + 1] + 0, ARGV[arg + 2] + 0
  local function pay_off(parts)
    local rest = math.fmod(parts, units)
    return (parts - rest) / units + (rest > 0 and 1 or 0)
  end

  local full, debt, unreadable = limit * micros, 0, false
  local arrival, rounding
  if held then
    arrival, rounding = string.match(held, '^ (%d+) (%d+)$')
    if not arrival or #arrival > 16 or #rounding > 15 then
      unreadable = true
    elseif arrival + 0 > now then
      local ahead = math.min(arrival - now, 2 * pay_off(full) + patience)
      debt = math.max(0, ahead * units - math.min(rounding + 0, units - 1))
    end
  end

  local retry, wait, over = 0, nil, debt + cost * micros - full
  if cost > limit then
    retry = -1
  elseif cost > 0 and over > 0 then
    wait = pay_off(over)
    if wait > patience then
      retry, wait = wait - patience, nil
    end
  end
  return retry, unreadable, function(charge)
    local owed = math.max(0, debt + charge * micros)
    local remaining = 0
    if owed < full then
      remaining = (full - owed - math.fmod(full - owed, micros)) / micros
    end
    local next, ahead = 0, pay_off(owed)
    if owed > 0 then
      next = pay_off(math.max(0, owed - (limit - remaining - 1) * micros))
    end
    if charge == 0 then
      return remaining, next, ahead
    end
    local text = string.format(' %.0f %.0f', now + ahead, ahead * units - owed)
    return remaining, next, ahead, text, tonumber(arrival) ~= now + ahead and now + ahead or nil
  end, wait
end
