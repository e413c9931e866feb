"""The backend of `examples/enginebay-remote`, from its folder where it is not installed."""

from enginebay_remote import register_backends as register_backends
