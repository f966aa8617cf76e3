"""The pods of jobs: how they are created and deleted, their state and problems, missing pods and orphans."""
