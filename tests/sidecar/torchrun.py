"""
torchrun for PyTorch 1.13 on Python 3.11, as on Debian 12.

There the zero flag is no member of its enumeration, so that torchrun fails to redirect output.
"""

from torch.distributed import run
from torch.distributed.elastic.multiprocessing import api

if api.Std.NONE not in list(api.Std):
    read = api.Std.from_str
    api.Std.from_str = classmethod(lambda _, text: api.Std.NONE if text == "0" else read(text))

if __name__ == "__main__":
    run.main()
