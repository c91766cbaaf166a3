"""The verifier on APIs whose faults are known: broken servers, the demo, published middlewares."""
