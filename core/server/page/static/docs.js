// The documentation of the API, out of openapi.json.

globalThis.SwaggerUIBundle({
  url: new URL("openapi.json", document.baseURI).href,
  dom_id: "#swagger-ui",
  deepLinking: true,
  layout: "BaseLayout",
});
