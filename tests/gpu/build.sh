#!/bin/sh
# Make the environment of `make rehearse-gpu`: torch's CUDA build and a stand-in for the CUDA runtime, in .venv-gpu.
# sh tests/gpu/build.sh PYTHON: PYTHON is the interpreter of .venv. Needs a C compiler and 5 GB of disk.
set -eu
cd "$(dirname "$0")/../.."
venv=$PWD/.venv-gpu
here=$PWD/tests/gpu
version=$(sed -n 's/^torch==\([0-9.]*\).*/\1/p' constraints.txt)
if [ ! -e "$venv/complete-$version" ]; then
    echo "Making .venv-gpu with torch $version for CUDA: a download of about 3 GB, 5 GB of disk, some minutes"
    "$1" -m venv "$venv"
    # torch from the index itself: a folder of CPU builds that pip is set up to look into would come first.
    PIP_FIND_LINKS='' PIP_CONFIG_FILE=/dev/null "$venv/bin/python" -m pip install -q "torch==$version" numpy
    "$venv/bin/python" -m pip install -q -c constraints.txt -e . pytest pytest-timeout hypothesis
    touch "$venv/complete-$version"
fi
headers=$(dirname "$(find "$venv" -path '*nvidia/include/driver_types.h' | head -n 1)")
cc -shared -fPIC -w -I "$headers" -o "$venv/libfakecudart.so" "$here/cudart.c"
cc -shared -fPIC -w -o "$venv/libcuda.so.1" "$here/cuda.c"
cp "$venv/libcuda.so.1" "$venv/libcuda.so"
cat > "$venv/python" <<SCRIPT
#!/bin/sh
exec env TRITON_LIBCUDA_PATH=$venv LD_LIBRARY_PATH=$venv LD_PRELOAD=$venv/libfakecudart.so $venv/bin/python "\$@"
SCRIPT
chmod +x "$venv/python"
"$venv/python" -c "import torch; print('torch', torch.__version__, 'sees', torch.cuda.get_device_name(0))"
