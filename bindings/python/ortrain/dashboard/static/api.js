// Questions to the server.

export async function ask(path, query = {}) {
  const url = new URL(`/api/${path}`, location.origin);
  for (const [name, value] of Object.entries(query)) {
    for (const one of Array.isArray(value) ? value : [value]) {
      if (one !== null && one !== undefined) url.searchParams.append(name, one);
    }
  }
  const response = await fetch(url);
  const found = await response.json();
  if (!response.ok) throw new Error(found.error || response.statusText);
  return found;
}
