// Requests to the server that this page came from.

let token = "";
let askForToken = () => Promise.resolve("");

// Where the server wants a token, this gives it.
export function whenRefused(ask) {
  askForToken = ask;
}

async function send(path, body, signal) {
  const headers = { "Content-Type": "application/json", ...(token ? { Authorization: `Bearer ${token}` } : {}) };
  const reply = await fetch(
    path,
    body ? { method: "POST", headers, body: JSON.stringify(body), signal } : { headers, signal },
  );
  if (reply.status === 401) {
    token = await askForToken();
    return send(path, body, signal);
  }
  if (reply.ok) return reply;
  const content = await reply.json().catch(() => null);
  const fault = new Error(content?.error?.message || `the server answers ${reply.status}`);
  throw Object.assign(fault, { code: content?.error?.code });
}

export async function ask(path, body, signal) {
  return (await send(path, body, signal)).json();
}

// The chunks of a streamed answer.
export async function* stream(path, body, signal) {
  const reader = (await send(path, { ...body, stream: true }, signal)).body
    .pipeThrough(new TextDecoderStream())
    .getReader();
  let held = "";
  for (;;) {
    const { done, value } = await reader.read();
    if (done) throw new Error("the answer was cut off");
    held += value;
    const events = held.split("\n\n");
    held = events.pop();
    for (const event of events) {
      const text = event.replace(/^data: /, "");
      if (text === "[DONE]") return;
      const chunk = JSON.parse(text);
      if (chunk.error) throw new Error(chunk.error.message);
      yield chunk;
    }
  }
}
