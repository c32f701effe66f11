"""Synchronous use: a batch of prompts from a script, a notebook, anywhere.

Run it: python examples/offline.py
"""

import sys

import triolet


def main(model: str = "demo") -> list[str]:
    """Returns one answer per question, in order."""
    questions = ["What is the capital of France?", "Name a primary colour."]
    sampling = triolet.SamplingParams(temperature=0.0, max_tokens=24)
    with triolet.LLM(model) as llm:
        chats = [[{"role": "user", "content": question}] for question in questions]
        results = llm.chat(chats, sampling)
    answers = [result.outputs[0].text for result in results]
    for question, answer in zip(questions, answers, strict=True):
        print(f"{question} -> {answer}")
    return answers


if __name__ == "__main__":
    main(*sys.argv[1:2])
