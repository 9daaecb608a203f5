"""Analyze chat templates by static rules on their syntax tree; nothing of a template is ever run here.

A chat template is a program that runs wherever the model is used. Two kinds of harm are looked for: breaking out of
the sandbox (walks to Python's internals, calls, loops that never end), and prompts that the user does not see, above
all those that appear only for certain words, dates or users.
"""

from collections.abc import Iterator, Mapping
from dataclasses import asdict

from jinja2 import TemplateSyntaxError, nodes

from ...metadata.child import ask
from ...metadata.sandbox import bounded_request, environment, tell
from .finding import Finding
from .template_escapes import calls, growing, internals, loops, recursion, work
from .template_prompts import dates, rewriting, texts, triggers, users
from .template_tree import Template, find, follow
from .unicode import hidden, mixed_word

SECONDS = 5.0  # of processor time for the templates of a file
MAX_TEMPLATE = 200_000  # characters; the longest published ones have a tenth


def audit_templates(templates: Mapping[str, str]) -> list[Finding]:
    """Run `audit_template` on each template in a separate process, as parsing some would never end."""
    lines, death = ask(__name__, {"templates": templates}, SECONDS)
    findings = [Finding(**finding) for line in lines for finding in line]
    return findings + [Finding("high", "size", key, f"looking into it {death}") for key in [*templates][len(lines) :]]


def serve() -> None:
    """Answer the one request of `audit_templates`: a list of findings for each template."""
    for key, source in bounded_request()["templates"].items():
        tell([asdict(finding) for finding in audit_template(key, source)])


def audit_template(key: str, source: str) -> list[Finding]:
    """Apply all rules to one template; return the findings, sorted by line."""
    findings = list(_characters(key, source))
    if len(source) > MAX_TEMPLATE:
        return [*findings, Finding("high", "size", key, f"{len(source):,} characters: not looked into")]
    try:
        tree = environment().parse(source)
    except (TemplateSyntaxError, RecursionError) as error:
        line = getattr(error, "lineno", None)
        return [*findings, Finding("medium", "syntax", key, f"is not valid: {str(error)[:120]}", line)]
    ways_out = (internals, calls, loops, work, growing, recursion)
    try:
        template = Template(key, source, tree, {macro.name: macro for macro in find(tree, nodes.Macro)})
        follow(template)
        for rule in (*ways_out, triggers, dates, users, texts, rewriting):
            findings += rule(template)
    except RecursionError:
        findings.append(Finding("high", "size", key, "nests so deeply that it cannot be looked into"))
    return sorted(dict.fromkeys(findings), key=lambda each: (each.line or 0, each.rule))


def _characters(key: str, source: str) -> Iterator[Finding]:
    """Find invisible and deceptive characters, as they are in the file or written as escapes."""
    for at, line in enumerate(source.splitlines(), 1):
        for severity, name in hidden(line):
            yield Finding(severity, "invisible text", key, f"has {name}, which a reader doesn't see", at)
        if word := mixed_word(line):
            yield Finding("medium", "look-alike letters", key, f"mixes alphabets in the word {word!r}", at)
