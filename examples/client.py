"""Joins a character's room, types a line, saves what comes in ten seconds: answer.wav and answer.png.
Run it beside `characters up`: python examples/client.py "Who are you?" [http://127.0.0.1:8000] [KEY]"""

import asyncio
import json
import sys
import urllib.request
import wave

from livekit import rtc
from PIL import Image


async def main(line: str, server: str = "http://127.0.0.1:8000", key: str = "") -> None:
    headers = {"Content-Type": "application/json", "X-API-Key": key}
    request = urllib.request.Request(f"{server}/v1/sessions", b'{"character": "ruby"}', headers)
    session = json.load(urllib.request.urlopen(request))  # state READY, or NOT_READY: then GET it until it is READY
    room, tracks = rtc.Room(), asyncio.Queue[rtc.Track]()
    room.on("track_subscribed", lambda track, *_: tracks.put_nowait(track))
    await room.connect(session["server_url"], session["participant_token"])
    both = [await tracks.get() for _ in range(2)]
    sound, picture = sorted(both, key=lambda track: track.kind)  # in LiveKit's numbering sound comes first
    video = rtc.VideoStream(picture, format=rtc.VideoBufferType.RGB24)
    await anext(video)  # with the first frame the character reads what is typed
    await room.local_participant.send_text(line, topic="lk.chat")
    with wave.open("answer.wav", "wb") as file:
        file.setparams((1, 2, 24_000, 0, "NONE", ""))
        async for heard in rtc.AudioStream(sound, sample_rate=24_000, num_channels=1):
            file.writeframes(heard.frame.data)
            if file.getnframes() > 10 * 24_000:
                break
    frame = (await anext(video)).frame
    Image.frombytes("RGB", (frame.width, frame.height), frame.data).save("answer.png")
    await room.disconnect()


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
