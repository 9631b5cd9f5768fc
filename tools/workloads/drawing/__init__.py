"""Draws training jobs and steps through what their operators allocate, save and free.

job.draw(seed) says what a job is; run.write(job, path) writes it as a torch memory snapshot.
"""
