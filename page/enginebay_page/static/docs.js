// The documentation of the API, out of openapi.json.

const at = (path) => new URL(path, document.baseURI).href;

const answer = await fetch(at("openapi.json"));
const spec = await answer.json();

globalThis.SwaggerUIBundle({
  // What is tried out goes where this page came from: a proxy's prefix is not in the document.
  spec: { ...spec, servers: [{ url: at(".").slice(0, -1) }] },
  dom_id: "#swagger-ui",
  deepLinking: true,
  layout: "BaseLayout",
});
