"""Layer times, cuts into jobs, and whether a set of DNNs fits a device. Also how a batch is divided (batch_*)."""
