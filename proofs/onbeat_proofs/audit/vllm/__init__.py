"""Schedulers of vLLM's family: real classes, driven through the interface of the reference. vLLM itself is imported
only when such a class is audited."""
