"""Renders a character that says a sentence, with the library alone: no server, no network, no GPU needed.
Run it: python examples/render.py "Hello, I am alive." hello.mp4 [ruby]"""

import sys

from characters.character import load_character
from characters.chunk import rechunk
from characters.generate.stream import frame_size, open_stream
from characters.media.portrait import load_portrait
from characters.media.video import VideoWriter
from characters.speech import open_voice


def main(text: str, out: str, name: str = "ruby") -> None:
    found = load_character(name)
    portrait = load_portrait(found.portrait, *frame_size("small"))
    stream = open_stream(model="small", portrait=portrait, seed=0, device="auto")
    voice = found.character.voice
    speech = open_voice(voice.engine).speak(text, speed=voice.speed, pitch=voice.pitch)
    # The stream takes sound in blocks of 4,000 samples, a sixth of a second, and returns as many chunks of four frames.
    blocks = rechunk(sentence.pcm for sentence in speech)
    with VideoWriter(out, stream.width, stream.height) as video:
        for chunk in stream.run(blocks):
            video.write(chunk.frames, chunk.pcm)


if __name__ == "__main__":
    main(*sys.argv[1:])
