// The theme searches in a worker, and browsers start none for a page that is opened as a file: a hidden frame does it.
if (location.protocol === "file:") {
  window.Worker = class extends EventTarget {
    constructor(url) {
      super();
      const frame = document.createElement("iframe");
      frame.hidden = true;
      frame.srcdoc = `<script src="${url}"></script>`;
      this.window = new Promise((resolve) => {
        frame.onload = () => resolve(frame.contentWindow);
      });
      this.window.then((inside) => {
        inside.postMessage = (data) => this.dispatchEvent(new MessageEvent("message", { data }));
      });
      document.body.append(frame);
    }

    async postMessage(data) {
      (await this.window).dispatchEvent(new MessageEvent("message", { data }));
    }
  };
}
