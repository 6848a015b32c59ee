# Where the headers are that the engine cudnn is compiled against: cuDNN's own,
# in the toolkit or in the package nvidia-cudnn-cu13, and those of its C++
# frontend, in the package nvidia-cudnn-frontend. pip brings both packages where
# they are needed (build_backend.py). No library is linked.

# Sets `result` to the folder that holds `header`: of `hints`, or of a package
# of the Python that builds.
function(find_header_folder result header package)
  foreach(folder IN LISTS ARGN)
    if(EXISTS "${folder}/${header}")
      set(${result} "${folder}" PARENT_SCOPE)
      return()
    endif()
  endforeach()
  ask_python(folder "
import importlib.metadata as m
try:
    files = m.files('${package}') or []
except m.PackageNotFoundError:
    files = []
print(*[f.locate().parent for f in files if f.name == '${header}'][:1])"
    "${Python_EXECUTABLE} cannot list the package ${package}.")
  if(NOT folder)
    message(FATAL_ERROR
      "The CUDA module needs the header ${header}, and ${Python_EXECUTABLE} has "
      "no package ${package}: `pip install ${package}`.")
  endif()
  set(${result} "${folder}" PARENT_SCOPE)
endfunction()

find_header_folder(CUDNN_INCLUDE_DIR cudnn.h nvidia-cudnn-cu13
  ${CMAKE_CUDA_TOOLKIT_INCLUDE_DIRECTORIES} "${CUBLASLT_INCLUDE_DIR}"
  /usr/include /usr/include/x86_64-linux-gnu)
find_header_folder(CUDNN_FRONTEND_INCLUDE_DIR cudnn_frontend.h
  nvidia-cudnn-frontend)
