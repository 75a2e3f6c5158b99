"use strict";
// Outside of the page, so that the content security policy needs no exception for inline scripts.
const place = document.getElementById("api");
SwaggerUIBundle({
  url: place.dataset.description,
  domNode: place,
  deepLinking: true,
  docExpansion: "none",
  filter: true,
  requestInterceptor: (request) => {
    if (request.method === "POST") {
      request.headers["Idempotency-Key"] ||= crypto.randomUUID();
    }
    return request;
  },
});
