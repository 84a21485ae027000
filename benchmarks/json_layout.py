"""How JSON is laid out: what it costs in sampled tokens, and what it does to the values.

python benchmarks/json_layout.py

Facts are to be extracted from made-up sentences, greedily, under a schema; a value is right if it
is the sentence's.  Once the question names the keys, once it does not.
"""

from __future__ import annotations

import argparse
import json
import random
from collections.abc import Iterator
from typing import Any

from sglang_lite.runtime.engine import Engine

NAMES = ("Ada", "Ben", "Carla", "Dmitri", "Elena", "Farid", "Grace", "Hugo", "Ines", "Jonas")
CITIES = ("Lyon", "Oslo", "Porto", "Turin", "Ghent", "Krakow", "Bristol", "Leipzig", "Seville")
JOBS = ("nurse", "baker", "pilot", "teacher", "plumber", "chemist", "lawyer", "farmer")
HOBBIES = ("chess", "running", "painting", "cooking", "climbing", "reading", "swimming")
ITEMS = ("apples", "pens", "lamps", "books", "chairs", "cups")
LAYOUTS: dict[str, dict[str, Any]] = {
    "gaps of up to 16": {},
    "gaps of up to 1": {"max_whitespace": 1},
    "no whitespace": {"max_whitespace": 0},
    '", " and ": "': {"separators": (", ", ": ")},
}


def record(**properties: Any) -> dict[str, Any]:
    """The schema of an object with exactly these properties."""
    required = [*properties]
    rest = {"required": required, "additionalProperties": False}
    return {"type": "object", "properties": properties, **rest}


def several(items: dict[str, Any]) -> dict[str, Any]:
    """The schema of a short list."""
    return {"type": "array", "items": items, "minItems": 1, "maxItems": 3}


TEXT, INTEGER = {"type": "string"}, {"type": "integer"}
PERSON = record(name=TEXT, age=INTEGER, city=TEXT, job=TEXT, hobbies=several(TEXT))
ORDER = record(
    customer=TEXT, lines=several(record(item=TEXT, count=INTEGER)), paid={"type": "boolean"}
)


def person(chance: random.Random) -> tuple[str, Any, Any]:
    """A sentence, its facts, their schema."""
    name, city, job = (chance.choice(words) for words in (NAMES, CITIES, JOBS))
    age, hobbies = chance.randint(18, 80), chance.sample(HOBBIES, 2)
    likes = " and ".join(hobbies)
    text = f"{name} is a {age}-year-old {job} who lives in {city} and likes {likes}."
    facts = {"name": name, "age": age, "city": city, "job": job, "hobbies": hobbies}
    return text, facts, PERSON


def order(chance: random.Random) -> tuple[str, Any, Any]:
    """A sentence, its facts, their schema."""
    name, paid = chance.choice(NAMES), chance.random() < 0.5
    lines = [{"item": item, "count": chance.randint(1, 9)} for item in chance.sample(ITEMS, 2)]
    wanted = " and ".join(f"{line['count']} {line['item']}" for line in lines)
    text = f"{name} ordered {wanted}. The order is {'paid' if paid else 'not paid yet'}."
    return text, {"customer": name, "lines": lines, "paid": paid}, ORDER


def leaves(value: Any, path: str = "") -> Iterator[tuple[str, str]]:
    """Every value that holds no others, by its path."""
    if isinstance(value, (dict, list)):
        pairs = value.items() if isinstance(value, dict) else enumerate(value)
        for key, inner in pairs:
            yield from leaves(inner, f"{path}.{key}")
    else:
        yield path, str(value).lower()


def right(text: str, facts: Any) -> int:
    """How many of the facts an answer has; a cut one has none."""
    try:
        found = dict(leaves(json.loads(text)))
    except ValueError:
        return 0
    return sum(found.get(path) == value for path, value in leaves(facts))


def main() -> None:
    """Print a line for each layout and question."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model-path", help="default: the default model")
    parser.add_argument("--texts", type=int, default=60)
    parser.add_argument("--seed", type=int, default=5)
    options = parser.parse_args()
    chance = random.Random(options.seed)
    tasks = [(person, order)[number % 2](chance) for number in range(options.texts)]
    engine = Engine(options.model_path)
    for named in (True, False):
        prompts = []
        for text, _, schema in tasks:
            keys = f" with the keys {', '.join(schema['properties'])}" if named else ""
            question = f"{text}\n\nExtract the facts as a JSON object{keys}."
            messages = [{"role": "user", "content": question}]
            prompts.append(engine.tokenizer.apply_chat_template(messages))
        for layout, given in LAYOUTS.items():
            fields = {"json_options": {**given, "max_digits": 40}, "temperature": 0}
            params = [
                {**fields, "json_schema": json.dumps(schema), "max_new_tokens": 200}
                for _, _, schema in tasks
            ]
            answers = engine.generate(input_ids=prompts, sampling_params=params)
            infos = [answer["meta_info"] for answer in answers]
            tokens = sum(info["completion_tokens"] for info in infos)
            forced = sum(info["forced_tokens"] for info in infos)
            cut = sum(info["finish_reason"]["type"] == "length" for info in infos)
            facts = sum(len(dict(leaves(task[1]))) for task in tasks)
            good = sum(
                right(answer["text"], task[1]) for answer, task in zip(answers, tasks, strict=True)
            )
            print(
                f"keys {'named' if named else 'open '}  {layout:17} right {good / facts:.3f}  "
                f"cut {cut}  tokens {tokens}  forced {forced / tokens:.2f}  "
                f"sampled {tokens - forced}",
                flush=True,
            )


if __name__ == "__main__":
    main()
