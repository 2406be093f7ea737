"""The caching allocator as a model: pure, no torch.

conf           settings strings: what is wrong, what torch does with them, what is in force
settings_model, settings_text, rounding, sizes   settings as the model takes them
follow, at_once, layout, start, replay, history  a recording replayed under its own setting: exact bytes
releases, private_pools, program                 what the program asked, without what the allocator made of it
cache, model, adopt, addresses, foreign          the allocator itself, and where the driver puts segments
verify                                           does the model do what the recording shows?
whatif, bounds, fallback, lab                    other settings: a point, a range, a verdict
cut, retries, ranges                             smaller tools
"""
