"""What another allocator setting would have done with a recorded program: asked, answered and put into words.

model   settings' outcomes side by side, as plain data
limits  the limit that the recorded process had; what cannot be replayed, and why
replay  questions: the replay itself is `gpumem_magic.allocator`
words   the conclusion, a table as text and HTML, what to paste
desk    a live view's questions, answered in a process of its own

The command line, the magic, the exported report and the live tab all ask here.
"""
