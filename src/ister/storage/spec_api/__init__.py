"""Storage interfaces of the specification that the broker does not use."""
