// Server-sent events of a fetch: https://html.spec.whatwg.org/multipage/server-sent-events.html

/** The data of each event of a stream of bytes, however that is cut: in lines, in characters. */
export async function* sseEvents(stream) {
  const decoder = new TextDecoder(); // drops a byte order mark, keeps half a character for later
  const reader = stream.getReader();
  let rest = "";
  let data = [];
  try {
    for (;;) {
      const { done, value } = await reader.read();
      rest += decoder.decode(value, { stream: !done });
      if (done && rest.endsWith("\r")) rest += "\n";
      const lines = rest.split(/\r\n|\n|\r(?!$)/); // a last \r may be half of \r\n
      rest = lines.pop();
      for (const line of lines) {
        if (line === "") {
          if (data.length) yield data.join("\n");
          data = [];
        } else if (line.startsWith("data:")) {
          data.push(line.slice(line[5] === " " ? 6 : 5));
        }
      }
      if (done) return; // an event without its blank line is incomplete, and dropped
    }
  } finally {
    await reader.cancel().catch(() => {});
  }
}
