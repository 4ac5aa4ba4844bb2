// Questions to the server.

// The studio has a token in its address, which every request carries.
export const token = new URLSearchParams(location.hash.slice(1)).get("token");
const HEADERS = token ? { "X-Ortrain-Token": token } : {};

export async function ask(path, query = {}) {
  const url = new URL(`/api/${path}`, location.origin);
  for (const [name, value] of Object.entries(query)) {
    for (const one of Array.isArray(value) ? value : [value]) {
      if (one !== null && one !== undefined) url.searchParams.append(name, one);
    }
  }
  return answerOf(await fetch(url, { headers: HEADERS }));
}

// An action of the studio.
export async function act(name, asked = {}) {
  return answerOf(await fetch(`/api/studio/${name}`, { method: "POST", headers: HEADERS, body: JSON.stringify(asked) }));
}

// A file for the studio.
export async function send(path, file) {
  const url = `/api/studio/file?path=${encodeURIComponent(path)}`;
  return answerOf(await fetch(url, { method: "POST", headers: HEADERS, body: file }));
}

async function answerOf(response) {
  const found = await response.json();
  if (!response.ok) throw new Error(found.error || response.statusText);
  return found;
}
