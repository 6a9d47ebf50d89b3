"""Any DNN as a traced graph: trace, operation costs, cut into stages."""
