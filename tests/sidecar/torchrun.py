"""
torchrun, also where PyTorch 1.13 runs on Python 3.11, as on Debian 12.

There a flag of zero is no member of its enumeration any more, and so torchrun finds no place for the output of its
ranks. Nothing else of it is changed.
"""

from torch.distributed import run
from torch.distributed.elastic.multiprocessing import api

if api.Std.NONE not in list(api.Std):
    read = api.Std.from_str
    api.Std.from_str = classmethod(lambda _, text: api.Std.NONE if text == "0" else read(text))

if __name__ == "__main__":
    run.main()
