"""Decoding of protobuf messages by the definition in their channel, with Google's own library."""

import functools

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory


def decode(schema, data):
    return _message_class(schema.name, schema.data).FromString(data)


@functools.cache
def _message_class(name, definition):
    pool = descriptor_pool.DescriptorPool()
    for file in descriptor_pb2.FileDescriptorSet.FromString(definition).file:
        pool.Add(file)
    return message_factory.GetMessageClass(pool.FindMessageTypeByName(name))
