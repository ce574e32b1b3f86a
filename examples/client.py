"""Joins a character's room, types a line, saves what comes in ten seconds: answer.wav and answer.png.
Run it beside `characters up`: python examples/client.py "Who are you?" [http://127.0.0.1:8000] [KEY]"""

import asyncio
import sys
import wave

import aiohttp
from livekit import rtc
from PIL import Image


async def main(line: str, server: str = "http://127.0.0.1:8000", key: str = "") -> None:
    async with aiohttp.ClientSession(server, headers={"X-API-Key": key}, raise_for_status=True) as http:
        session = await (await http.post("/v1/sessions", json={"character": "ruby"})).json()
        while session["state"] == "NOT_READY":  # queued; asking keeps the place
            await asyncio.sleep(1)
            session = await (await http.get(f"/v1/sessions/{session['id']}")).json()
    room, tracks = rtc.Room(), asyncio.Queue[rtc.Track]()
    room.on("track_subscribed", lambda track, *_: tracks.put_nowait(track))
    await room.connect(session["server_url"], session["participant_token"])
    sound, picture = sorted([await tracks.get(), await tracks.get()], key=lambda track: track.kind)  # sound is 1
    video = rtc.VideoStream(picture, capacity=1, format=rtc.VideoBufferType.RGB24)
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
