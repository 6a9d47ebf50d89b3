"""Times on the target, cuts into jobs, and whether a set of DNNs fits a device."""
