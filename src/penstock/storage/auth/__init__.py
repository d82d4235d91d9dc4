"""Credentials, and the signatures and tokens made from them.

The stores in :mod:`penstock.storage.objects` get their request headers from here.

- ``named_keys``: which account a bucket belongs to; ``aws_credentials``: keys, regions and
  endpoints as AWS tools find them; ``aws_sigv4``: signing for S3.
- ``azure_auth``: Azure's accounts and signatures; ``bearer_tokens``: tokens for Google, the Hub and
  AIStore.
"""
