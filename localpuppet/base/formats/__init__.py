"""Parse bytes from outside into values that later code may trust: names, times, JSON, YAML.

decides: `canonical_yaml`, `converter`, `names`, `packed`, `prometheus`,
  `schema_number`, `schemas`, `strict_json`, `strict_yaml`, `text`, `times`, `values`,
  `webhook_signature`.
acts: `documents`, `json_file`.
"""
