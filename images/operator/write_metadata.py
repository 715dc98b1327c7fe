"""Tell Python of the distribution whose code was copied into the image: its version and its licence.

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
text = f"Metadata-Version: 2.4\nName: {name}\nVersion: {version}\nLicense-Expression: {project['license']}\n"
(folder / "METADATA").write_text(text)
