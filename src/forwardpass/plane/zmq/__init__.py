"""The ZMQ event plane: direct sockets found through discovery, sockets with fixed addresses, and brokers."""
