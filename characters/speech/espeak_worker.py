"""A separate program that drives libespeak-ng, which alone gives the times of its phonemes.

It runs as a process of its own and is never imported: libespeak-ng is under the GPL, so it must stay out of our address
space. It uses the standard library only, nothing of this project, and talks through pipes:

    stdin   one JSON line a request: {"text", "voice", "rate" (words a minute), "pitch" (0..99)}
    stdout  one JSON line a reply: {"sample_rate", "samples", "phonemes": [[IPA, start sample], ...]} or {"error"},
            then `samples` little-endian int16 values
"""

import ctypes
import ctypes.util
import json
import sys

RETRIEVAL = 1  # AUDIO_OUTPUT_RETRIEVAL: hand the samples over by callback, as they are made
PHONEME_EVENTS, IPA_NAMES = 1, 2
EVENT_PHONEME, EVENT_END = 7, 0
RATE, PITCH = 1, 3  # espeak_PARAMETER
UTF8 = 1


class EventId(ctypes.Union):
    _fields_ = [("number", ctypes.c_int), ("name", ctypes.c_char_p), ("string", ctypes.c_char * 8)]


class Event(ctypes.Structure):
    _fields_ = [
        ("type", ctypes.c_int),
        ("unique_identifier", ctypes.c_uint),
        ("text_position", ctypes.c_int),
        ("length", ctypes.c_int),
        ("audio_position", ctypes.c_int),  # ms
        ("sample", ctypes.c_int),
        ("user_data", ctypes.c_void_p),
        ("id", EventId),
    ]


Callback = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.POINTER(ctypes.c_short), ctypes.c_int, ctypes.POINTER(Event))


def main() -> None:
    name = ctypes.util.find_library("espeak-ng") or "libespeak-ng.so.1"
    library = ctypes.CDLL(name)
    sample_rate = library.espeak_Initialize(RETRIEVAL, 0, None, PHONEME_EVENTS | IPA_NAMES)
    pcm: list[bytes] = []
    phonemes: list[list] = []

    def collect(samples, count, event) -> int:
        if count > 0:
            pcm.append(ctypes.string_at(samples, 2 * count))
        i = 0
        while event[i].type != EVENT_END:
            if event[i].type == EVENT_PHONEME:
                symbol = event[i].id.string.decode("utf8", "ignore")
                phonemes.append([symbol, event[i].audio_position * sample_rate // 1000])
            i += 1
        return 0

    callback = Callback(collect)
    library.espeak_SetSynthCallback(callback)
    for line in sys.stdin:
        request = json.loads(line)
        pcm.clear()
        phonemes.clear()
        reply: dict = {}
        if library.espeak_SetVoiceByName(request["voice"].encode()) != 0:
            reply["error"] = f"unknown voice {request['voice']!r}"
        else:
            library.espeak_SetParameter(RATE, int(request["rate"]), 0)
            library.espeak_SetParameter(PITCH, int(request["pitch"]), 0)
            text = request["text"].encode()
            library.espeak_Synth(text, ctypes.c_size_t(len(text) + 1), 0, 0, 0, UTF8, None, None)
            library.espeak_Synchronize()
        sound = b"".join(pcm)
        reply.update(sample_rate=sample_rate, samples=len(sound) // 2, phonemes=phonemes)
        sys.stdout.buffer.write(json.dumps(reply).encode() + b"\n" + sound)
        sys.stdout.buffer.flush()


if __name__ == "__main__":
    main()
