// Runs in the page: keeps what the user sees and hears. A function of no arguments, for Playwright.
() => {
  const video = document.getElementById("video");
  const stream = document.getElementById("audio").srcObject;
  const [width, height] = [176, 272];
  const canvas = Object.assign(document.createElement("canvas"), { width, height });
  const pen = canvas.getContext("2d", { willReadFrequently: true });
  const context = new AudioContext();
  const meter = context.createAnalyser();
  meter.fftSize = 2048;
  context.createMediaStreamSource(stream).connect(meter);
  const wave = new Float32Array(meter.fftSize);
  const recorder = new MediaRecorder(stream, { mimeType: "audio/webm;codecs=opus" });
  const pieces = [];
  let before = null;
  const seen = []; // [seconds, change of the lower face, loudness] of each frame

  const look = (now) => {
    pen.drawImage(video, 0, 0, width, height);
    const { data } = pen.getImageData(width * 0.25, height * 0.4, width * 0.5, height * 0.35);
    const grey = new Uint8Array(data.length / 4).map((_, i) => data[i * 4 + 1]);
    meter.getFloatTimeDomainData(wave);
    const loud = Math.sqrt(wave.reduce((sum, x) => sum + x * x, 0) / wave.length);
    if (before) seen.push([now / 1000, grey.reduce((sum, x, i) => sum + Math.abs(x - before[i]), 0) / grey.length, loud]);
    before = grey;
    video.requestVideoFrameCallback(look);
  };
  video.requestVideoFrameCallback(look);
  recorder.ondataavailable = ({ data }) => pieces.push(data);
  recorder.start(500);

  globalThis.recording = {
    seen,
    picture: () => {
      pen.drawImage(video, 0, 0, width, height);
      return canvas.toDataURL("image/png").split(",")[1];
    },
    sound: async () => {
      await new Promise((resolve) => { recorder.onstop = resolve; recorder.stop(); });
      const reader = new FileReader();
      await new Promise((resolve) => { reader.onload = resolve; reader.readAsDataURL(new Blob(pieces)); });
      return reader.result.split(",")[1];
    },
  };
}
