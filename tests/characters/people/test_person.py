"""People differ, look like people, and are the same again for the same seed."""

import numpy as np
import torch

from characters.people.expression import unit_weights
from characters.people.figure import moves
from characters.people.hair import SKULL, STYLES, build_strands
from characters.people.look import FIELDS, sample_look
from characters.people.person import FACTORS, FEMALE, NORMAL, _knobs, measure, sample_person
from characters.people.template import load_template

PEOPLE = [sample_person(seed) for seed in range(24)]


def test_faces_have_the_proportions_of_people():
    inside = [all(low <= measure(p.control)[k] <= high for k, (low, high) in NORMAL.items()) for p in PEOPLE]
    assert sum(inside) >= 23


def test_a_seed_gives_the_same_person_and_others_differ():
    again = sample_person(3)
    assert np.array_equal(again.control, PEOPLE[3].control) and again.age == PEOPLE[3].age
    face = load_template().head > 0.9
    shapes = np.stack([p.control[face] for p in PEOPLE])
    distance = np.abs(shapes[:, None] - shapes[None]).mean((2, 3))
    assert distance[np.triu_indices(len(PEOPLE), 1)].min() > 0.008  # 0.8 mm on average, over the whole head


def test_every_named_target_exists():
    named = {knob for moved in FACTORS.values() for knob in moved} | set(FEMALE)
    assert named <= set(_knobs())


def test_both_sexes_and_all_ages_occur():
    assert 6 <= sum(p.is_male for p in PEOPLE) <= 18
    assert min(p.age for p in PEOPLE) < 30 < 55 < max(p.age for p in PEOPLE)


def test_units_follow_the_curves():
    names = load_template().units.names
    motion = torch.zeros(4, 12)
    motion[3, 0] = 1
    mouth = torch.zeros(4, 5)
    mouth[1, 0], mouth[2, 0] = 0.5, 1.0
    weights = unit_weights(motion, mouth)
    jaw, blink = weights[:, names.index("jawOpen")], weights[:, names.index("eyeBlinkLeft")]
    assert jaw[0] == 0 and jaw[2] == 2 * jaw[1] > 0.5
    assert blink[0] < 0.1 and blink[3] == 1


def test_moves_are_those_of_the_template():
    found, template = moves(), load_template()
    unit = template.units.names.index("jawOpen")
    lips = np.flatnonzero(template.masks[:, 0] > 0.9)
    heights = template.body.apply(template.control)[lips, 1]
    assert heights.min() > 6.4 and heights.max() < 6.8  # nothing but the mouth
    lowest = lips[np.argmin(heights)]
    entries = found.entries[found.offsets[lowest] : found.offsets[lowest + 1]]
    down = entries[entries[:, 3] == unit, 1]
    assert len(down) == 1 and down[0] < -0.2  # the lower lip falls by more than 2 cm


def test_hair_of_every_style_grows_outside_of_the_head():
    from characters.people.anatomy import build_anatomy, head_share
    from characters.people.hair import HAIR

    person = PEOPLE[0]
    random = np.random.default_rng(0)
    anatomy = build_anatomy(person, random, glasses=False)
    look = sample_look(person, 0)
    top = anatomy.fine[head_share() > 0.9]
    skull = np.linalg.norm(top[top[:, 1] > 8.0] - SKULL, axis=1).min()
    for name in STYLES:
        look.style = name
        lashes = np.zeros((920, 3))
        strands, scalp, pieces = build_strands(person, anatomy, look, lashes, 0, random, torch.device("cpu"))
        hair = strands.traits[:, 3] == HAIR
        assert np.isfinite(strands.points).all() and 0 < pieces < len(strands.pieces)
        high = strands.points[hair & (strands.points[:, 1] > 8.0), :3]
        assert (np.linalg.norm(high - SKULL, axis=1) > 0.85 * skull).all(), name
        assert scalp.max() <= 1


def test_looks_fill_the_block_of_the_shaders():
    look = sample_look(PEOPLE[1], 0)
    look.values |= {"eye_left": np.zeros(3), "eye_right": np.zeros(3)}
    block = np.frombuffer(look.pack(), np.float32)
    assert len(block) == 4 * sum(FIELDS.values()) and np.isfinite(block).all()
    other = sample_look(PEOPLE[1], 1, kept=look)
    assert (other.style, other.beard, other.glasses) == (look.style, look.beard, look.glasses)
    assert not np.array_equal(other.values["light_colour"], look.values["light_colour"])
