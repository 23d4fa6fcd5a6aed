"""The one error that people see, where labs and labctl look for it."""

from labsched.errors import LabError as LabError
