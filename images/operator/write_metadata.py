"""Tell Python of the distribution whose code was copied into the image, so that the operator knows its version.

python3 write_metadata.py PYPROJECT
"""

import pathlib
import sys
import sysconfig
import tomllib

project = tomllib.loads(pathlib.Path(sys.argv[1]).read_text())["project"]
name, version = project["name"], project["version"]
folder = pathlib.Path(sysconfig.get_path("purelib"), f"{name.replace('-', '_')}-{version}.dist-info")
folder.mkdir()
(folder / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
