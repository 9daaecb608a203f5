"""Layouts of diffusers: how a family's tensors are named and cut there → as they are published, a module a family.

Each module has `DiffusersLayout` values. A layout is called with the tensors of a model, by diffusers' names, and
returns those of the published model; `signatures` are the names that show which layout a model has.
"""
