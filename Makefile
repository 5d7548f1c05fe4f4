PYTHON ?= python
NATIVE_BUILD ?= build/native
OBJECTS ?= $(NATIVE_BUILD)

.PHONY: setup native fmt lint type test test-native guards size check prove-A prove-B prove-C prove-D1 clean

setup:  ## an editable-like development install in the active environment
	$(PYTHON) -m pip install scikit-build-core nanobind cmake ninja
	$(PYTHON) -m pip install '.[dev]'

# Renamed into place: a process that has the old module mapped keeps it.
define install_module
@for module in $(NATIVE_BUILD)/csrc/$(1)*.so; do \
  name=$$(basename "$$module"); cp "$$module" "$(2)/.$$name.new" && mv -f "$(2)/.$$name.new" "$(2)/$$name" || exit 1; \
done
endef

native:  ## build the C++ modules into src/ for work without installing
	cmake -S . -B $(NATIVE_BUILD) -G Ninja -DPython_EXECUTABLE=$$($(PYTHON) -c 'import sys; print(sys.executable)') >/dev/null
	cmake --build $(NATIVE_BUILD) -j 2
	$(call install_module,_native,src/octavo/ops/native)
	$(call install_module,_spm,src/octavo/tokenization)

fmt:
	ruff format . && ruff check --fix .

lint:
	ruff check . && ruff format --check .

type:
	mypy --strict src/octavo

test:
	$(PYTHON) -m pytest

test-native:  ## C++ tests under ASan and UBSan
	cmake -S . -B $(NATIVE_BUILD)-asan -G Ninja -DOCTAVO_PYTHON=OFF -DOCTAVO_CPP_TESTS=ON -DOCTAVO_SANITIZE=ON >/dev/null
	cmake --build $(NATIVE_BUILD)-asan -j 2
	ctest --test-dir $(NATIVE_BUILD)-asan/csrc --no-tests=error --output-on-failure

guards:  ## no weak symbol, spilled accumulator or foreign instruction in the objects of OBJECTS (`make native`, or pip's in build/)
	sh scripts/odr_guard.sh $(OBJECTS)
	sh csrc/tests/check_spills.sh $(OBJECTS)
	sh csrc/tests/check_isa.sh $(OBJECTS)

smoke:  ## one short run of each command-line verb, in the active environment
	sh scripts/smoke.sh

prove-A:  ## every promise of the first milestone, measured: a row each (SMALL=1: a short version)
	$(PYTHON) scripts/prove_a.py

prove-B:  ## every promise of the second milestone: speed, shares of limits, peers (SMALL=1: for a machine that is shared)
	$(PYTHON) scripts/prove_b.py

prove-C:  ## every promise of the third milestone: the prefix cache (SMALL=1: a short version)
	$(PYTHON) scripts/prove_c.py

prove-D1:  ## every promise of the server: supervision, churn, streams (SMALL=1: a short version)
	$(PYTHON) scripts/prove_d1.py

size:  ## lines per package, and the largest files
	@for d in src/octavo/*/ csrc/*/ tests; do printf '%6d  %s\n' $$(find $$d \( -name '*.py' -o -name '*.cpp' -o -name '*.h' \) -print0 | xargs -0 cat 2>/dev/null | wc -l) $$d; done
	@echo; git ls-files '*.py' '*.cpp' '*.h' | xargs wc -l | sort -rn | sed -n 2,12p

check:
	bash .ci/run

clean:
	rm -rf build dist .venv .venv-test .mypy_cache .ruff_cache .pytest_cache
