// Axes: from values to pixels, and where the ticks are.

// Multiples of 1, 2 or 5 times a power of 10 that lie in a range.
export function roundTicks(low, high, about) {
  if (!(high > low)) return [low];
  const raw = (high - low) / Math.max(1, about);
  const power = 10 ** Math.floor(Math.log10(raw));
  const step = power * [1, 2, 5, 10].find((factor) => factor * power >= raw * 0.999);
  const ticks = [];
  for (let index = Math.ceil(low / step - 1e-9); index * step <= high + step * 1e-9; index += 1) {
    ticks.push(Number((index * step).toPrecision(12)));
  }
  return ticks;
}

// Powers of 10 in a range, with their multiples by 2 and 5 where there are few.
export function logTicks(low, high, about) {
  const [first, last] = [Math.floor(Math.log10(low)), Math.ceil(Math.log10(high))];
  const stride = Math.max(1, Math.ceil((last - first) / Math.max(1, about)));
  const ticks = [];
  for (let power = first; power <= last; power += stride) {
    for (const factor of last - first <= 3 ? [1, 2, 5] : [1]) ticks.push(Number(`${factor}e${power}`));
  }
  const inside = ticks.filter((tick) => tick >= low * 0.9999 && tick <= high * 1.0001);
  return inside.length > 1 ? inside : roundTicks(low, high, about).filter((tick) => tick > 0);
}

// Ticks of an axis of seconds: round in seconds, minutes or hours.
export function timeTicks(low, high, about) {
  const unit = high - low > 7200 ? 3600 : high - low > 120 ? 60 : 1;
  return roundTicks(low / unit, high / unit, about).map((tick) => tick * unit);
}

export function scale(low, high, from, to, logarithmic = false) {
  const place = logarithmic ? Math.log : (value) => value;
  const [start, end] = [place(low), place(high)];
  const ratio = end > start ? (to - from) / (end - start) : 0;
  const at = (value) => (ratio ? from + (place(value) - start) * ratio : (from + to) / 2);
  at.invert = (pixel) => {
    const value = ratio ? start + (pixel - from) / ratio : start;
    return logarithmic ? Math.exp(value) : value;
  };
  return at;
}

// A range of values with some room around it.
export function extent(values, logarithmic) {
  let [low, high] = [Infinity, -Infinity];
  for (const value of values) {
    if (logarithmic && !(value > 0)) continue;
    if (value < low) low = value;
    if (value > high) high = value;
  }
  if (low > high) return logarithmic ? [0.1, 1] : [0, 1];
  if (logarithmic) return low === high ? [low / 2, high * 2] : [low / (high / low) ** 0.04, high * (high / low) ** 0.04];
  const room = low === high ? Math.abs(low) * 0.1 || 1 : (high - low) * 0.05;
  return [low - room, high + room];
}

// Which of some increasing numbers is nearest.
export function nearest(numbers, value) {
  let [low, high] = [0, numbers.length - 1];
  while (low < high) {
    const middle = (low + high) >> 1;
    if (numbers[middle] < value) low = middle + 1;
    else high = middle;
  }
  return low > 0 && value - numbers[low - 1] <= numbers[low] - value ? low - 1 : low;
}
